"""`fordway diff`: shows what became slower from one run to another."""
