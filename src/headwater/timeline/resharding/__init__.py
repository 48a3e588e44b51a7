"""Moves a farm to other instances, or to another number of clusters, while it is used."""
