"""What deploy/build is made of; installer/ beside it knows what a release holds."""
