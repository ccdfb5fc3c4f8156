"""Tables, plots and figures from rows that the caller hands in; nothing here fetches or decodes."""
