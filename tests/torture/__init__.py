"""Torture: runs that are killed, refused or interrupted at each system call, and what is there afterwards."""
