"""The EAGLE-3 drafter on a GPU: rows, growth and trees of a batch are one captured graph."""
