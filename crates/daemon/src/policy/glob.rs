//! Patterns of paths.

use serde::Deserialize;

/// `*` is any piece of a name, `?` one character of it, `**` anything, slashes included.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Glob(Vec<Piece>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Character(char),
    OneOfName,
    AnyOfName,
    Anything,
}

impl TryFrom<String> for Glob {
    type Error = String;

    fn try_from(pattern: String) -> Result<Glob, String> {
        if pattern.is_empty() {
            return Err("a pattern that is empty fits nothing".into());
        }
        if pattern.contains('/') && !pattern.starts_with(['/', '*']) || !pattern.contains(['/', '*', '.']) {
            return Err(format!(
                "`{pattern}` fits nothing: paths begin with `/`, and units end in `.service` and the like"
            ));
        }
        let mut pieces = Vec::new();
        let mut rest = pattern.chars().peekable();
        while let Some(character) = rest.next() {
            pieces.push(match character {
                '*' if rest.next_if_eq(&'*').is_some() => Piece::Anything,
                '*' => Piece::AnyOfName,
                '?' => Piece::OneOfName,
                other => Piece::Character(other),
            });
        }
        Ok(Glob(pieces))
    }
}

impl Glob {
    /// Whether all of `text` fits. It takes as long as pattern times text at most, whatever they are.
    pub fn matches(&self, text: &str) -> bool {
        // For each number of pieces, whether they fit what was read so far.
        let mut fits = vec![false; self.0.len() + 1];
        fits[0] = true;
        self.skip_empty(&mut fits);
        for character in text.chars() {
            let mut next = vec![false; fits.len()];
            for (at, piece) in self.0.iter().enumerate().filter(|(at, _)| fits[*at]) {
                let of_name = character != '/';
                match piece {
                    Piece::Character(own) => next[at + 1] |= *own == character,
                    Piece::OneOfName => next[at + 1] |= of_name,
                    Piece::AnyOfName => next[at] |= of_name,
                    Piece::Anything => next[at] = true,
                }
            }
            self.skip_empty(&mut next);
            fits = next;
        }
        fits[self.0.len()]
    }

    /// What may stand for nothing may be left out.
    fn skip_empty(&self, fits: &mut [bool]) {
        for (at, piece) in self.0.iter().enumerate() {
            if fits[at] && matches!(piece, Piece::AnyOfName | Piece::Anything) {
                fits[at + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::try_from(pattern.to_owned()).expect(pattern).matches(text)
    }

    #[test]
    fn a_star_stays_within_a_name_and_two_do_not() {
        assert!(matches(
            "/usr/lib/postgresql/*/bin/postgres",
            "/usr/lib/postgresql/17/bin/postgres"
        ));
        assert!(!matches("/usr/*/postgres", "/usr/lib/postgresql/17/bin/postgres"));
        assert!(matches("/usr/**/postgres", "/usr/lib/postgresql/17/bin/postgres"));
        assert!(matches("/usr/**", "/usr/bin/python3.13"));
        assert!(matches("/usr/bin/python3.??", "/usr/bin/python3.13"));
        assert!(!matches("/usr/bin/python3.??", "/usr/bin/python3./x"));
        assert!(!matches("/usr/bin/python", "/usr/bin/python3"));
        assert!(matches("*@*.service", "postgresql@17-main.service"));
        assert!(matches("/usr/bin/*", "/usr/bin/"));
    }

    #[test]
    fn a_pattern_made_to_take_long_does_not() {
        let pattern = format!("/{}b", "*a".repeat(200));
        assert!(!matches(&pattern, &format!("/{}", "a".repeat(4000))));
    }

    #[test]
    fn what_can_fit_nothing_is_refused() {
        for pattern in ["", "relative/path", "postgres"] {
            assert!(Glob::try_from(pattern.to_owned()).is_err(), "{pattern}");
        }
    }
}
