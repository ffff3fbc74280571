//! Probes this process's clocks and prints the result as JSON: `fastpath probe --json` without the command, for
//! machines that the command is not built for.

use fastpath_measure::Probe;

fn main() -> serde_json::Result<()> {
    println!("{}", serde_json::to_string_pretty(&Probe::run())?);
    Ok(())
}
