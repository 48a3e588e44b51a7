"""The console: pages that show a store and change it, in any browser."""
