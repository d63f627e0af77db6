//! `polis up` on a terminal: the progress of the start, and Ctrl-C.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// The terminal output of a start that is stopped by Ctrl-C, and whether it exited cleanly; `None` without a
/// terminal.
fn start_and_interrupt(args: &str) -> Option<(String, bool)> {
    let line = format!("stty cols 80 rows 24; exec {} up {args}", env!("CARGO_BIN_EXE_polis"));
    let mut terminal = Command::new("script");
    terminal.args(["-q", "-e", "-c", &line, "/dev/null"]).env("TERM", "xterm").env_remove("POLIS_DATA_DIR");
    let spawned = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut terminal) = spawned else {
        eprintln!("skipped: no terminal available");
        return None;
    };
    let (mut keyboard, mut screen) = (terminal.stdin.take()?, terminal.stdout.take()?);
    let (mut output, mut pressed) = (Vec::new(), false);
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = screen.read(&mut chunk) {
        output.extend_from_slice(&chunk[..length]);
        if !pressed && String::from_utf8_lossy(&output).contains("Ctrl-C stops it.") {
            keyboard.write_all(b"\x03").expect("terminal input");
            pressed = true;
        }
    }
    let ended = terminal.wait().expect("an exit status");
    Some((String::from_utf8_lossy(&output).into_owned(), ended.success()))
}

#[test]
fn a_terminal_shows_the_progress_of_the_start_and_ctrl_c_stops_it_with_a_message() {
    let Some((output, clean)) = start_and_interrupt("--ephemeral --cities dfw --listen 127.0.0.1:0") else {
        return;
    };
    assert!(clean, "{output}");
    let (before, after) = output.split_once("Polis is up, after").expect("a summary");
    // The spinner may show any step: opening the store, creating planes, starting controllers, waiting.
    assert!(
        ["store", "planes", "controllers", "waiting"].iter().any(|word| before.contains(word)),
        "{before:?}"
    );
    assert!(after.contains("Stopping Polis and its instances."), "{after:?}");
}
