"""What models are made of: attention, feed-forward networks, recurrent cells, positions, and stacks of them."""
