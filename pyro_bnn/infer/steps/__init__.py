"""What families of engines take steps by: descents and their rounds, U, starts, kept draws."""
