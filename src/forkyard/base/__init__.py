"""Technical parts that know no word of the domain: processes, durable files, clocks, logs."""
