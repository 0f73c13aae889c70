"""From a run's checkpoint to a folder that loads anywhere, with its model card."""
