"""Weights and sizes from files: safetensors, GGUF, Hugging Face folders, and fetching them.

To use it: `read_config.read_config` for sizes, `fetch.fetch` for the model; weights are read by
`inferlab.model.load_model`, through gguf_file and hf_folder.
"""
