//! The completion scripts, given to the shells that they are for. A shell that is not installed is left out, and that is
//! said.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Verbs and flags that a script must know, each with what stands before it.
const KNOWN: [&str; 6] = ["deploy", "rollout", "undo", "destroy", "--image", "--keep-instances"];

fn script(shell: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_polis")).args(["completion", shell]).output();
    let output = output.expect("polis starts");
    assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a script")
}

/// Gives a script to a shell on its standard input; none if there is no such shell.
fn feed(shell: &str, args: &[&str], text: &str) -> Option<(bool, String)> {
    let mut command = Command::new(shell);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped, {shell} is not installed");
        return None;
    };
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("a shell that reads");
    let output = child.wait_with_output().expect("a shell that ends");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((output.status.success(), said.concat()))
}

#[test]
fn every_shell_gets_a_script_that_knows_the_verbs_and_that_it_can_read() {
    for (shell, reads_only) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = script(shell);
        for word in KNOWN {
            assert!(script.contains(word.trim_start_matches("--")), "{shell} does not know {word}");
        }
        if let Some((read, said)) = feed(shell, &[reads_only], &script) {
            assert!(read && said.is_empty(), "{shell}: {said}");
        }
    }
    for shell in ["elvish", "powershell"] {
        assert!(script(shell).contains("rollout"), "{shell}");
    }
}

/// What bash offers when Tab is pressed after these words.
fn offered(words: &[&str]) -> Option<Vec<String>> {
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let line = format!(
        "{}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_polis polis '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script("bash"),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let (done, said) = feed("bash", &[], &line)?;
    assert!(done, "{said}");
    Some(said.lines().map(str::to_owned).collect())
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

/// What zsh makes of a line when Tab is pressed at its end: it is typed at a zsh of its own, where `polis` says its words.
const TYPED_AT_ZSH: &str = r#"
zmodload zsh/zpty
zpty shell "PS1= TERM=dumb zsh -f -i"
zpty -w shell "autoload -Uz compinit; compinit -u -D; source $1; polis() { print -r -- ran: \"\$@\" }; print -r -- set: up"
zpty -r -m shell said '*set: up*set: up*'
zpty -w -n shell "$2"$'\t\n'
zpty -r -m shell said '*ran: *'$'\n'
print -r -- "$said"
zpty -d shell
"#;

#[test]
fn zsh_completes_verbs_and_flags() {
    let asked = Command::new("zsh").args(["-c", "zmodload zsh/zpty"]).output();
    if !asked.is_ok_and(|asked| asked.status.success()) {
        eprintln!("skipped, zsh is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("_polis");
    std::fs::write(&file, script("zsh")).expect("written");
    for (typed, expected) in [
        ("polis dep", "ran: deploy"),
        ("polis rollout u", "ran: rollout undo"),
        ("polis up --ep", "ran: up --ephemeral"),
        ("polis completion z", "ran: completion zsh"),
    ] {
        let mut shell = Command::new("timeout");
        shell.args(["60", "zsh", "-f", "-c", TYPED_AT_ZSH, "zsh"]).arg(&file).arg(typed);
        let output = shell.env("HOME", folder.path()).output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(expected), "{typed}: {said}");
    }
}
