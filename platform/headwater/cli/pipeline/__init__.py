"""`headwater pipeline`: a module for each command, the parts they share, and the group above them."""
