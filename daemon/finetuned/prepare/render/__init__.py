"""Rows → what the model sees of them: rendered by a chat template, encoded, and masked to what is learned."""
