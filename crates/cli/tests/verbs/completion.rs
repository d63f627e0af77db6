//! Tests of the completion scripts in their shells. A shell that is not installed is skipped with a message.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Verbs and flags that every script must contain.
const EXPECTED: [&str; 6] = ["deploy", "rollout", "undo", "destroy", "--image", "--keep-instances"];

fn script(shell: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_polis")).args(["completion", shell]).output();
    let output = output.expect("polis starts");
    assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a script")
}

/// Runs a shell with a script on stdin; returns success and output, or `None` if the shell is not installed.
fn run_shell(shell: &str, args: &[&str], text: &str) -> Option<(bool, String)> {
    let mut command = Command::new(shell);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped, {shell} is not installed");
        return None;
    };
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("writes to the shell");
    let output = child.wait_with_output().expect("an exit status");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((output.status.success(), text.concat()))
}

#[test]
fn every_script_contains_the_verbs_and_is_valid_in_its_shell() {
    for (shell, no_exec) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = script(shell);
        for word in EXPECTED {
            assert!(script.contains(word.trim_start_matches("--")), "the script for {shell} has no {word}");
        }
        if let Some((valid, output)) = run_shell(shell, &[no_exec], &script) {
            assert!(valid && output.is_empty(), "{shell}: {output}");
        }
    }
    for shell in ["elvish", "powershell"] {
        assert!(script(shell).contains("rollout"), "{shell}");
    }
}

/// The completions of bash after these words.
fn offered(words: &[&str]) -> Option<Vec<String>> {
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let line = format!(
        "{}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_polis polis '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script("bash"),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let (success, output) = run_shell("bash", &[], &line)?;
    assert!(success, "{output}");
    Some(output.lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_verbs_and_flags() {
    let table: [(&[&str], &[&str]); 4] = [
        (&["polis", "dep"], &["deploy"]),
        (&["polis", "rollout", "u"], &["undo"]),
        (&["polis", "up", "--ep"], &["--ephemeral"]),
        (&["polis", "completion", "z"], &["zsh"]),
    ];
    for (typed, expected) in table {
        let Some(offered) = offered(typed) else { return };
        assert_eq!(offered, expected, "{typed:?}");
    }
}

#[test]
fn bash_completes_names_with_what_the_program_prints() {
    let line = format!(
        "{}\npolis() {{ [ \"$*\" = 'complete -- status' ] && printf 'web\\nweb-api\\nshop\\n'; }}\nCOMP_WORDS=(polis status we)\nCOMP_CWORD=2\n_polis_names polis we status\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script("bash"),
    );
    let Some((success, output)) = run_shell("bash", &[], &line) else { return };
    assert!(success, "{output}");
    assert_eq!(output, "web\nweb-api\n");
}

/// A program in place of `polis` that prints names for three lines, and the line for all others.
const NAMES: &str = r#"#!/bin/sh
case "$*" in
    'complete -- status') printf 'web-api\nshop\n' ;;
    'complete -- deploy web --city') printf 'dfw\nord\n' ;;
    'complete -- rollout undo') printf 'api\n' ;;
    complete*) ;;
    *) echo "ran: $*" ;;
esac
"#;

/// Lines that are typed, and the lines that completion makes of them.
const COMPLETED: [(&str, &str); 4] = [
    ("polis status we", "status web-api"),
    ("polis deploy web --city d", "deploy web --city dfw"),
    ("polis deploy web --city=o", "deploy web --city=ord"),
    ("polis rollout undo a", "rollout undo api"),
];

/// A directory with the program and the script of a shell.
fn mk_home(shell: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a temporary directory");
    let program = home.path().join("polis");
    std::fs::write(&program, NAMES).expect("writes the program");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    std::fs::write(home.path().join("_polis"), script(shell)).expect("writes the script");
    home
}

/// A shell that finds the program of this directory first.
fn in_home(command: &mut Command, home: &std::path::Path) -> String {
    let path = format!("{}:{}", home.display(), std::env::var("PATH").unwrap_or_default());
    let output = command.env("HOME", home).env("PATH", path).output().expect("a shell");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Types a line and Tab into an interactive zsh.
const TYPED_AT_ZSH: &str = r#"
zmodload zsh/zpty
zpty shell "PS1= TERM=dumb zsh -f -i"
zpty -w shell "autoload -Uz compinit; compinit -u -D; source $1; print -r -- set: up"
zpty -r -m shell output '*set: up*set: up*'
zpty -w -n shell "$2"$'\t\n'
zpty -r -m shell output '*ran: *'$'\n'
print -r -- "$output"
zpty -d shell
"#;

#[test]
fn zsh_completes_verbs_flags_and_names() {
    let probe = Command::new("zsh").args(["-c", "zmodload zsh/zpty"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped, zsh is not installed");
        return;
    }
    let home = mk_home("zsh");
    let verbs = [
        ("polis dep", "deploy"),
        ("polis rollout u", "rollout undo"),
        ("polis up --ep", "up --ephemeral"),
        ("polis completion z", "completion zsh"),
    ];
    for (typed, expected) in verbs.into_iter().chain(COMPLETED) {
        let mut shell = Command::new("timeout");
        shell.args(["60", "zsh", "-f", "-c", TYPED_AT_ZSH, "zsh"]).arg(home.path().join("_polis")).arg(typed);
        let text = in_home(&mut shell, home.path());
        assert!(text.contains(&format!("ran: {expected}")), "{typed}: {text}");
    }
}

#[test]
fn fish_completes_names() {
    if Command::new("fish").arg("--version").output().is_err() {
        eprintln!("skipped, fish is not installed");
        return;
    }
    let home = mk_home("fish");
    for (typed, expected) in COMPLETED {
        let mut shell = Command::new("fish");
        shell.args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"]);
        let text = in_home(shell.arg(home.path().join("_polis")).arg(typed), home.path());
        let last = expected.split(' ').next_back().expect("a word");
        let offered: Vec<&str> = text.lines().map(|line| line.split('\t').next().unwrap_or(line)).collect();
        assert_eq!(offered, [last], "{typed}");
    }
}

/// Without the shells: the scripts ask the program at every place where clap knows no values.
#[test]
fn the_scripts_of_zsh_and_fish_ask_the_program_for_names() {
    let zsh = script("zsh");
    assert!(zsh.contains("local -a polis_words=") && zsh.contains("polis complete -- "), "{zsh}");
    assert!(
        !zsh.contains(":_default'") && zsh.contains("--city=") && zsh.contains(":_polis_names'"),
        "{zsh}"
    );
    let fish = script("fish");
    let flags = fish.lines().filter(|line| line.contains(" -l city ") || line.contains(" -l project "));
    let mut flags = flags.peekable();
    assert!(flags.peek().is_some(), "{fish}");
    assert!(flags.all(|line| line.ends_with("-r -f -a \"(__polis_names)\"")), "{fish}");
}
