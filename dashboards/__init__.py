"""Tables, plots and pictures from rows that the caller hands in; nothing here fetches or decodes."""
