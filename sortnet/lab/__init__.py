"""The laboratory: data, training, measurements and the paper's tables. Needs the extra `lab`."""
