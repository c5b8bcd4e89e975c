"""Process 2, without a GPU: models and data come to the store; rows are read, rendered, tokenized and masked once."""
