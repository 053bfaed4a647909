"""Membership of consumer groups with the classic protocol and KIP-848, and the assignors of the classic protocol."""
