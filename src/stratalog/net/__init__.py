"""All sockets: a listener, connections and sendfile. This package knows frames, not their contents."""
