"""Tables, figures and the HTML page, from stored results. Nothing here measures or trains."""
