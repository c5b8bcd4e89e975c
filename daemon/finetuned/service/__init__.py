"""Process 1, the daemon: looks at every live job, decides, acts. It trains nothing and owns no training process."""
