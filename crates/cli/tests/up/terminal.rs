//! `polis up` at a terminal: what a person sees while it starts, and Ctrl-C.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// What stands on the terminal when it is up and was stopped by Ctrl-C; none where no terminal can be had.
fn typed(args: &str) -> Option<(String, bool)> {
    let line = format!("stty cols 80 rows 24; exec {} up {args}", env!("CARGO_BIN_EXE_polis"));
    let mut terminal = Command::new("script");
    terminal.args(["-q", "-e", "-c", &line, "/dev/null"]).env("TERM", "xterm").env_remove("POLIS_DATA_DIR");
    let spawned = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut terminal) = spawned else {
        eprintln!("skipped, no terminal can be had");
        return None;
    };
    let (mut keyboard, mut screen) = (terminal.stdin.take()?, terminal.stdout.take()?);
    let (mut seen, mut pressed) = (Vec::new(), false);
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = screen.read(&mut piece) {
        seen.extend_from_slice(&piece[..length]);
        if !pressed && String::from_utf8_lossy(&seen).contains("Ctrl-C stops it.") {
            keyboard.write_all(b"\x03").expect("a terminal that listens");
            pressed = true;
        }
    }
    let ended = terminal.wait().expect("a terminal that ends");
    Some((String::from_utf8_lossy(&seen).into_owned(), ended.success()))
}

#[test]
fn at_a_terminal_it_says_what_it_is_doing_until_it_is_up_and_ctrl_c_stops_it_with_a_word() {
    let Some((seen, well)) = typed("--ephemeral --cities dfw --listen 127.0.0.1:0") else { return };
    assert!(well, "{seen}");
    let (before, after) = seen.split_once("Polis is up, after").expect("a summary");
    // Whatever it was doing when the spinner turned: opening the store, making planes, waiting for them.
    assert!(
        ["store", "planes", "controllers", "waiting"].iter().any(|word| before.contains(word)),
        "{before:?}"
    );
    assert!(after.contains("Stopping, and the instances with it."), "{after:?}");
}
