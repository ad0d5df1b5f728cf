"""They draw the pictures and write the tables of README and docs/. Run each as a file."""
