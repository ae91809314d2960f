"""Scripts that write into a clone of this repository: tables of the docs, model cards, surveys."""
