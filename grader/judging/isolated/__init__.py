"""The judge's side of isolated grading: children that compute, and what is asked of them."""
