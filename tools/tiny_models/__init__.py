"""How the small trained models in this folder were made; `make train-tiny` makes them anew."""
