"""Folders that appear whole, remote places, assets, records and checksums of files."""
