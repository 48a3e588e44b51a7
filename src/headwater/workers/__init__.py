"""Crews of workers: messages of any source, several at a time, each until its handler succeeded."""
