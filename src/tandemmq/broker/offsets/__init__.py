"""How far groups have got."""
