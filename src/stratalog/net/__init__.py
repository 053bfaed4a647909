"""The only sockets: a listener, connections, sendfile. Knows frames, not what is in them."""
