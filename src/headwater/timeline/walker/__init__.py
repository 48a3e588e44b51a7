"""Walks through all timelines of a farm, to repair what no reader ever asks for."""
