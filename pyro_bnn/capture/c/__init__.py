"""Graphs of few numbers, written as one function in C and compiled."""
