"""What every way to run Forkyard must do, each behaviour by name."""
