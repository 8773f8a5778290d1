"""Worker processes forked from a server that has imported their libraries already."""
