//! Matches strings against patterns with wildcards. Anyone who may set a bucket's policy chooses the patterns, and
//! other users wait while a gateway matches these patterns. The cost is therefore nearly linear in every case.

use memchr::memmem;

/// The symbols of a pattern: byte values, and larger numbers for wildcards. The bytes between two wildcards are whole
/// characters in UTF-8.
pub(crate) type PatternSymbol = u16;
/// `*`, which matches any characters.
pub(crate) const ANY_CHARACTERS: PatternSymbol = 256;
/// `?`, which matches one character.
pub(crate) const ANY_CHARACTER: PatternSymbol = 257;

/// A segment with `?` up to this length is compared at each character of the text. Building the tables of a
/// [`SegmentSearch`] takes longer than this many comparisons.
const SHORT_SEGMENT: usize = 8;

/// Returns whether the pattern matches the whole text. Cost: proportional to the sum of the two lengths. A segment is a
/// part of the pattern between two `*`. A segment with `?` is compared with a part of the text, and adds a multiple of
/// the length of this part. For a segment of up to 8 symbols, the factor is at most 8. For a longer segment, the factor
/// is the length of the segment divided by 64, rounded up.
pub(crate) fn fits(pattern: &[PatternSymbol], text: &str) -> bool {
    fits_counted(pattern, text.as_bytes(), &mut 0)
}

/// Returns the same result as [`fits`], for text in UTF-8, and adds the cost to `steps`. One step is at most a few
/// instructions.
fn fits_counted(pattern: &[PatternSymbol], text: &[u8], steps: &mut usize) -> bool {
    *steps += pattern.len();
    let is_star = |symbol: &PatternSymbol| *symbol == ANY_CHARACTERS;
    let Some(first) = pattern.iter().position(is_star) else {
        return without_start(pattern, text).is_some_and(<[u8]>::is_empty);
    };
    let last = pattern.iter().rposition(is_star).unwrap_or(first);
    let Some(rest) = without_start(&pattern[..first], text) else { return false };
    let Some(mut rest) = without_end(&pattern[last + 1..], rest) else { return false };
    let between = &pattern[first..last];
    if between.iter().filter(|symbol| !is_star(symbol)).count() > rest.len() {
        return false;
    }
    // Each segment is matched at its first possible position. If there is any match, there is also a match with these
    // positions, because all matches of a segment have the same number of characters.
    for segment in between.split(is_star).filter(|segment| !segment.is_empty()) {
        let Some(end) = end_of_first(segment, rest, steps) else { return false };
        rest = &rest[end..];
    }
    true
}

/// Returns the text after a match of `segment`, which has no `*`, at the start of the text.
fn without_start<'t>(segment: &[PatternSymbol], mut text: &'t [u8]) -> Option<&'t [u8]> {
    for symbol in segment {
        let (byte, rest) = text.split_first()?;
        text = match *symbol {
            ANY_CHARACTER => &text[character_bytes(text)..],
            symbol if symbol == u16::from(*byte) => rest,
            _ => return None,
        };
    }
    Some(text)
}

/// Returns the text before a match of `segment`, which has no `*`, at the end of the text.
fn without_end<'t>(segment: &[PatternSymbol], mut text: &'t [u8]) -> Option<&'t [u8]> {
    for symbol in segment.iter().rev() {
        let (byte, rest) = text.split_last()?;
        text = match *symbol {
            ANY_CHARACTER => &text[..text.iter().rposition(|byte| !is_continuation(*byte))?],
            symbol if symbol == u16::from(*byte) => rest,
            _ => return None,
        };
    }
    Some(text)
}

/// Returns the end of the first match of `segment`, which has no `*`.
fn end_of_first(segment: &[PatternSymbol], text: &[u8], steps: &mut usize) -> Option<usize> {
    if !segment.contains(&ANY_CHARACTER) {
        let bytes: Vec<u8> = segment.iter().map(|symbol| *symbol as u8).collect();
        let end = memmem::find(text, &bytes).map(|start| start + bytes.len());
        *steps += end.unwrap_or(text.len());
        return end;
    }
    let end = match segment.len() <= SHORT_SEGMENT {
        true => end_of_first_short(segment, text),
        false => return SegmentSearch::new(segment, steps).end_in(text, steps),
    };
    *steps += segment.len() * end.unwrap_or(text.len());
    end
}

fn end_of_first_short(segment: &[PatternSymbol], text: &[u8]) -> Option<usize> {
    let starts = (0..text.len()).filter(|at| !is_continuation(text[*at]));
    let mut rests = starts.filter_map(|at| without_start(segment, &text[at..]));
    rests.next().map(|rest| text.len() - rest.len())
}

/// A search for a segment with `?`, with the Shift-And algorithm. Bit `i` of the state is set if the first `i + 1`
/// symbols match the end of the text that was read so far. One operation on a word updates 64 of these bits.
struct SegmentSearch {
    symbols: usize,
    /// The number of 64-bit words in a set of symbols. Bit `i` of a set represents symbol `i` of the segment.
    words: usize,
    /// For each byte value, the number of its row; 0 for bytes that the segment does not contain.
    row_of: [u16; 256],
    /// Sets of symbols, one after another. Row 0 is empty. Each other row contains the symbols that equal one byte
    /// value.
    rows: Vec<u64>,
    /// The set of the symbols that are `?`.
    any: Vec<u64>,
}

impl SegmentSearch {
    fn new(segment: &[PatternSymbol], steps: &mut usize) -> Self {
        let words = segment.len().div_ceil(64);
        let (mut row_of, mut rows, mut any) = ([0_u16; 256], vec![0; words], vec![0; words]);
        for (at, symbol) in segment.iter().enumerate() {
            let (word, bit) = (at / 64, 1 << (at % 64));
            let Some(row) = row_of.get_mut(usize::from(*symbol)) else {
                any[word] |= bit;
                continue;
            };
            if *row == 0 {
                *row = (rows.len() / words) as u16;
                rows.resize(rows.len() + words, 0);
            }
            rows[usize::from(*row) * words + word] |= bit;
        }
        *steps += segment.len() + rows.len();
        SegmentSearch { symbols: segment.len(), words, row_of, rows, any }
    }

    /// Returns the end of the first match in a text.
    fn end_in(&self, text: &[u8], steps: &mut usize) -> Option<usize> {
        let last = self.symbols - 1;
        let mut state = vec![0; self.words];
        for (at, byte) in text.iter().enumerate() {
            *steps += self.words;
            self.advance(&mut state, *byte);
            let is_match = state[last / 64] >> (last % 64) & 1 == 1;
            // A `?` at the end also matches the rest of its character.
            if is_match && text.get(at + 1).is_none_or(|next| !is_continuation(*next)) {
                return Some(at + 1);
            }
        }
        None
    }

    /// Updates the state for the next byte of the text.
    fn advance(&self, state: &mut [u64], byte: u8) {
        let row = usize::from(self.row_of[usize::from(byte)]) * self.words;
        // A match starts at the first byte of a character.
        let is_first = !is_continuation(byte);
        let mut carry = u64::from(is_first);
        for ((state, equal), any) in state.iter_mut().zip(&self.rows[row..]).zip(&self.any) {
            let shifted = *state << 1 | carry;
            carry = *state >> 63;
            *state = match is_first {
                true => shifted & (equal | any),
                // A `?` that matched the first byte of a character matches its other bytes too.
                false => shifted & equal | *state & any,
            };
        }
    }
}

/// Returns the length of the first character of a text in UTF-8.
fn character_bytes(text: &[u8]) -> usize {
    1 + text[1..].iter().take_while(|byte| is_continuation(**byte)).count()
}

/// Returns whether a byte in UTF-8 is not the first byte of its character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn symbols(pattern: &str) -> Vec<PatternSymbol> {
        let symbol = |byte| match byte {
            b'*' => ANY_CHARACTERS,
            b'?' => ANY_CHARACTER,
            byte => u16::from(byte),
        };
        pattern.bytes().map(symbol).collect()
    }

    /// Returns whether `pattern` matches `text`. Compares the symbols one by one, and returns to the last `*` after
    /// each mismatch.
    fn fits_slowly(pattern: &[PatternSymbol], text: &[u8]) -> bool {
        let (mut at, mut read) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while read < text.len() {
            match pattern.get(at) {
                Some(&ANY_CHARACTERS) => {
                    at += 1;
                    star = Some((at, read));
                }
                Some(&ANY_CHARACTER) => {
                    read += character_bytes(&text[read..]);
                    at += 1;
                }
                Some(&symbol) if symbol == u16::from(text[read]) => {
                    read += 1;
                    at += 1;
                }
                _ => {
                    let Some((after, covered)) = star else { return false };
                    let covered = covered + character_bytes(&text[covered..]);
                    star = Some((after, covered));
                    (at, read) = (after, covered);
                }
            }
        }
        pattern[at..].iter().all(|symbol| *symbol == ANY_CHARACTERS)
    }

    /// Returns a string that the pattern matches, unless `b` replaces the character at the index `broken` of the
    /// string.
    fn example(pattern: &str, fillings: &[String], broken: usize) -> String {
        let mut fillings = fillings.iter().cycle();
        let mut text = String::new();
        for symbol in pattern.chars() {
            match symbol {
                '*' => text.push_str(fillings.next().map_or("", String::as_str)),
                '?' => text.extend(fillings.next().and_then(|filling| filling.chars().next()).or(Some('a'))),
                symbol => text.push(symbol),
            }
        }
        let other = |(at, found)| if at == broken { 'b' } else { found };
        text.chars().enumerate().map(other).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn short_patterns_fit_what_a_simple_matcher_fits(pattern in "[abä€*?]{0,12}", text in "[abä€]{0,16}") {
            let symbols = symbols(&pattern);
            prop_assert_eq!(fits(&symbols, &text), fits_slowly(&symbols, text.as_bytes()), "{} {}", pattern, text);
        }

        #[test]
        fn long_patterns_fit_what_a_simple_matcher_fits(
            pattern in "([aä]{0,40}[?]{0,3}[ab€?]{0,40}[*]?[aä?]{0,80}){0,4}",
            fillings in proptest::collection::vec("[abä€]{0,5}", 1..5),
            broken in 0..400_usize,
        ) {
            let symbols = symbols(&pattern);
            let text = example(&pattern, &fillings, broken);
            prop_assert_eq!(fits(&symbols, &text), fits_slowly(&symbols, text.as_bytes()), "{} {}", pattern, text);
        }
    }

    /// Checks that the text does not match, and returns the number of steps.
    fn steps(pattern: &str, text: &str) -> usize {
        let mut steps = 0;
        assert!(!fits_counted(&symbols(pattern), text.as_bytes(), &mut steps), "{pattern}");
        steps
    }

    /// Uses a key of the maximum length, and policies of the maximum size whose resources almost match the key.
    #[test]
    fn a_policy_cannot_make_requests_costly() {
        let key = format!("bucket/{}{}0001", format!("{}/", "a".repeat(200)).repeat(4), "a".repeat(195));
        let long = "a".repeat(440);
        for (patterns, pattern) in [
            (40, format!("bucket/*{long}b00")),
            (40, format!("bucket/*{long}b00*")),
            (40, format!("bucket/*?{long}b00*")),
            (40, format!("bucket/*{}b00*", "a?".repeat(220))),
            (20, format!("bucket/*{}b*", "?".repeat(990))),
            (40, format!("bucket/{}b*", "*a".repeat(220))),
            (40, format!("bucket/{}b*", "*a?".repeat(147))),
            (40, format!("bucket/{}b*", "*aaaaaaaa?".repeat(44))),
            (1000, "bucket/*aaaaaa?b*".to_owned()),
        ] {
            // Comparing at each position would take up to 40 * 440 * 1000 = 17,600,000 steps.
            let total = patterns * steps(&pattern, &key);
            let most = 20 * 1024 * 2 + patterns * key.len() * 17;
            assert!(total <= most, "{pattern}: {total} steps, more than {most}");
        }
    }
}
