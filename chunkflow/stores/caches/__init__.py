"""What is kept between two reads: pages of files, decoded chunks, buffers."""
