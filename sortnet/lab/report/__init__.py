"""From results to what people read. Nothing here measures or trains."""
