"""The pure core: frozen values, their states and the decisions about them. No I/O, no clock."""
