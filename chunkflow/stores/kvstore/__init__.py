"""Keys to bytes: chunks of arrays as files of a folder or objects behind a URL."""
