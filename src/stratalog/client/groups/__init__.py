"""Membership of consumer groups: the classic protocol and KIP-848's, and who gets which partitions."""
