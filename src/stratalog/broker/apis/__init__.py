"""One module an API family. Each opens with its keys, the versions it serves, and its known gaps."""
