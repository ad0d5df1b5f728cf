"""How the small trained models of data/tiny were made; `make train-tiny` makes them anew.

recipes says what is trained, corpus on what; train runs it, export writes the file that the course
reads, evaluate fills its card.
"""
