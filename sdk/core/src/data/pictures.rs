//! Built-in corpus of small pictures as text: scenes, each as a caption in words and as pixels.
//!
//! A picture has 8 lines of 8 pixels, each the letter of its colour. It shows two shapes of 4 by 4 pixels, one above
//! or to the left of the other, on a background of a third colour. In half of the documents the caption comes before
//! the picture, in the other half after it, so that a model learns to draw and to describe:
//!
//! ```text
//! draw a red circle above a blue frame on white
//! wwwrrwww
//! wwrrrrww
//! wwrrrrww
//! wwwrrwww
//! wwbbbbww
//! wwbwwbww
//! wwbwwbww
//! wwbbbbww
//!
//! look
//! kkkkkkkk
//! ```
//!
//! There are 7,500 scenes, far more than a short text contains. If a model draws a scene that it never read, it has
//! generalised. **Entropy**: scenes are drawn independently, a caption determines its scene, and the scene its
//! picture. The entropy of a document is therefore the entropy of a scene plus that of the order of its two parts.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::rng::Rng;

/// Number of lines of a picture, and of pixels in a line.
pub const SIDE: usize = 8;
/// Number of lines of a shape, and of pixels in a line.
const SHAPE_SIDE: usize = 4;

/// Colour of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// `r`
    Red,
    /// `g`
    Green,
    /// `b`
    Blue,
    /// `y`
    Yellow,
    /// `w`
    White,
    /// `k`
    Black,
}

impl Colour {
    /// All colours, with their words and letters.
    const ALL: [(Self, &str, char); 6] = [
        (Self::Red, "red", 'r'),
        (Self::Green, "green", 'g'),
        (Self::Blue, "blue", 'b'),
        (Self::Yellow, "yellow", 'y'),
        (Self::White, "white", 'w'),
        (Self::Black, "black", 'k'),
    ];

    /// Returns its word in a caption.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns its letter in a picture.
    #[must_use]
    pub fn letter(self) -> char {
        Self::ALL[self as usize].2
    }
}

/// Shape on the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A square without its corners.
    Circle,
    /// A filled square.
    Square,
    /// The edge of a square.
    Frame,
    /// Two crossing bars.
    Cross,
    /// The half below a diagonal.
    Stairs,
}

impl Shape {
    /// All shapes, with their words and pixels.
    const ALL: [(Self, &str, [&str; SHAPE_SIDE]); 5] = [
        (Self::Circle, "circle", [".##.", "####", "####", ".##."]),
        (Self::Square, "square", ["####", "####", "####", "####"]),
        (Self::Frame, "frame", ["####", "#..#", "#..#", "####"]),
        (Self::Cross, "cross", [".#..", "####", ".#..", ".#.."]),
        (Self::Stairs, "stairs", ["#...", "##..", "###.", "####"]),
    ];
}

/// Line and column of a shape's top-left pixel.
type Corner = (usize, usize);

/// Position of the first shape relative to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Above the second shape.
    Above,
    /// To the left of the second shape.
    LeftOf,
}

impl Position {
    /// Both positions, with their words and the corners of both shapes.
    const ALL: [(Self, &str, [Corner; 2]); 2] =
        [(Self::Above, "above", [(0, 2), (4, 2)]), (Self::LeftOf, "left of", [(2, 0), (2, 4)])];
}

/// Two shapes on a background whose colour neither of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    /// Colour and shape of the upper or left one.
    pub first: (Colour, Shape),
    /// Position of the first shape.
    pub place: Position,
    /// Colour and shape of the other one.
    pub second: (Colour, Shape),
    /// Colour of the background.
    pub ground: Colour,
}

impl Scene {
    /// Draws shapes, their colours and their position uniformly, then the background from the remaining colours.
    #[must_use]
    pub fn any(rng: &mut Rng) -> Self {
        let mut one_of = |count: usize| rng.below(count as u32) as usize;
        let mut thing = || (Colour::ALL[one_of(Colour::ALL.len())].0, Shape::ALL[one_of(Shape::ALL.len())].0);
        let (first, second) = (thing(), thing());
        let place = Position::ALL[one_of(Position::ALL.len())].0;
        let grounds = Self::grounds(first.0, second.0);
        Self { first, place, second, ground: grounds[one_of(grounds.len())] }
    }

    fn grounds(first: Colour, second: Colour) -> Vec<Colour> {
        let colours = Colour::ALL.into_iter().map(|(colour, ..)| colour);
        colours.filter(|colour| ![first, second].contains(colour)).collect()
    }

    /// Returns its picture.
    #[must_use]
    pub fn draw(&self) -> Picture {
        let mut pixels = [[self.ground; SIDE]; SIDE];
        let (.., corners) = Position::ALL[self.place as usize];
        for ((colour, shape), (top, left)) in [self.first, self.second].into_iter().zip(corners) {
            let (.., rows) = Shape::ALL[shape as usize];
            for (row, marks) in rows.iter().enumerate() {
                for (column, _) in marks.bytes().enumerate().filter(|(_, mark)| *mark == b'#') {
                    pixels[top + row][left + column] = colour;
                }
            }
        }
        Picture(pixels)
    }
}

/// The display form is the caption: `a red circle above a blue frame on white`.
impl Display for Scene {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let thing = |(colour, shape): (Colour, Shape)| {
            format!("a {} {}", colour.word(), Shape::ALL[shape as usize].1)
        };
        let place = Position::ALL[self.place as usize].1;
        write!(f, "{} {place} {} on {}", thing(self.first), thing(self.second), self.ground.word())
    }
}

/// A picture of [`SIDE`] lines and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture([[Colour; SIDE]; SIDE]);

impl Picture {
    /// Returns its lines from the top, each from the left.
    #[must_use]
    pub fn pixels(&self) -> &[[Colour; SIDE]; SIDE] {
        &self.0
    }

    /// Returns the first picture in `text`: eight successive lines of exactly eight letters of colours. Returns
    /// `None` without a picture.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        lines.windows(SIDE).find_map(|lines| lines.join("\n").parse().ok())
    }
}

/// The display form has eight lines, each with a line break.
impl Display for Picture {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| {
            let letters: String = line.iter().map(|colour| colour.letter()).collect();
            writeln!(f, "{letters}")
        })
    }
}

impl FromStr for Picture {
    type Err = PictureError;

    fn from_str(text: &str) -> Result<Self, PictureError> {
        let mut pixels = [[Colour::Black; SIDE]; SIDE];
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() != SIDE {
            return Err(PictureError::Lines { found: lines.len() });
        }
        for (line, pixels) in lines.iter().zip(&mut pixels) {
            let letters: Vec<char> = line.chars().collect();
            if letters.len() != SIDE {
                return Err(PictureError::Pixels { found: letters.len() });
            }
            for (letter, pixel) in letters.into_iter().zip(pixels) {
                let known = Colour::ALL.into_iter().find(|(.., known)| *known == letter);
                *pixel = known.map(|(colour, ..)| colour).ok_or(PictureError::Colour { letter })?;
            }
        }
        Ok(Self(pixels))
    }
}

/// Reason why a text is not a picture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The number of lines is wrong.
    #[error("a picture has {SIDE} lines, and here are {found}")]
    Lines {
        /// Lines in the text.
        found: usize,
    },
    /// A line is too long or too short.
    #[error("a line of a picture has {SIDE} pixels, and one here has {found}")]
    Pixels {
        /// Letters in the line.
        found: usize,
    },
    /// A letter is not that of a colour.
    #[error("no colour has the letter {letter:?}")]
    Colour {
        /// The letter.
        letter: char,
    },
}

/// Generates successive documents in ASCII, at least `bytes_min` bytes in total. The same `seed` gives the same text
/// on every machine.
#[must_use]
pub fn generate(seed: u64, bytes_min: usize) -> String {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    while text.len() < bytes_min {
        let scene = Scene::any(&mut rng);
        let (caption, picture) = (scene.to_string(), scene.draw());
        let document = match rng.below(2) {
            0 => format!("draw {caption}\n{picture}\n"),
            _ => format!("look\n{picture}{caption}\n\n"),
        };
        text.push_str(&document);
    }
    text
}

/// Returns the entropy of the text in nats per byte: a lower bound of any model's expected loss on unseen text.
#[must_use]
pub fn entropy_nats_per_byte() -> f64 {
    let mean = |lengths: Vec<usize>| lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    let colour = mean(Colour::ALL.map(|(_, word, _)| word.len()).to_vec());
    let shape = mean(Shape::ALL.map(|(_, word, _)| word.len()).to_vec());
    let place = mean(Position::ALL.map(|(_, word, _)| word.len()).to_vec());
    // Bytes that all documents have: `draw a   a   on ` with its spaces, the line breaks, and the picture.
    let rest = "draw a   a   on \n\n".len() + 1 + SIDE * (SIDE + 1);
    let bytes = rest as f64 + 3.0 * colour + 2.0 * shape + place;
    let (colours, shapes) = (Colour::ALL.len() as f64, Shape::ALL.len() as f64);
    let grounds = ((colours - 1.0).ln() + (colours - 1.0) * (colours - 2.0).ln()) / colours;
    let scene = 2.0 * (colours.ln() + shapes.ln()) + (Position::ALL.len() as f64).ln() + grounds;
    (scene + 2.0_f64.ln()) / bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_caption_says_what_is_drawn() {
        let scene = Scene {
            first: (Colour::Red, Shape::Circle),
            place: Position::Above,
            second: (Colour::Blue, Shape::Frame),
            ground: Colour::White,
        };
        assert_eq!(scene.to_string(), "a red circle above a blue frame on white");
        let picture = "wwwrrwww\nwwrrrrww\nwwrrrrww\nwwwrrwww\nwwbbbbww\nwwbwwbww\nwwbwwbww\nwwbbbbww\n";
        assert_eq!(scene.draw().to_string(), picture);
        let beside = Scene { place: Position::LeftOf, ..scene }.draw().to_string();
        assert_eq!(beside.lines().nth(2), Some("wrrwbbbb"));
        assert_eq!((beside.lines().next(), beside.lines().nth(7)), (Some("wwwwwwww"), Some("wwwwwwww")));
    }

    #[test]
    fn a_picture_is_found_in_a_text_and_nothing_else_is() {
        let text = generate(3, 20_000);
        let document = text.split("\n\n").next().unwrap();
        let scene = Scene::any(&mut Rng::new(3));
        assert_eq!(Picture::find(document), Some(scene.draw()), "{document}");
        let picture = scene.draw().to_string();
        assert_eq!(picture.parse(), Ok(scene.draw()));
        assert_eq!(Picture::find(&picture[9..]), None);
        let refused = |text: &str| text.parse::<Picture>().unwrap_err();
        assert_eq!(refused(&picture[9..]), PictureError::Lines { found: 7 });
        assert_eq!(refused(&picture.replacen('\n', "r\n", 1)), PictureError::Pixels { found: 9 });
        assert_eq!(refused(&format!("é{}", &picture[1..])), PictureError::Colour { letter: 'é' });
    }

    /// The stated entropy matches the text: documents have the expected mean length, and all scenes occur.
    #[test]
    fn entropy_is_that_of_the_text() {
        let text = generate(1, 4_000_000);
        assert!(text.is_ascii() && text.starts_with(&generate(1, 100)[..100]));
        let documents: Vec<&str> = text.split_terminator("\n\n").collect();
        let bytes = text.len() as f64 / documents.len() as f64;
        let drawn = documents.iter().filter(|document| document.starts_with("draw ")).count();
        assert!((drawn as f64 / documents.len() as f64 - 0.5).abs() < 0.01);
        let captions: BTreeSet<&str> = documents
            .iter()
            .map(|document| {
                document.lines().find(|line| line.contains(" on ")).unwrap().trim_start_matches("draw ")
            })
            .collect();
        // There are 25 pairs of shapes, two positions, and 6 · 5 + 6 · 5 · 4 combinations of colours. Each scene is
        // expected four times.
        assert!((7_100..=7_500).contains(&captions.len()), "{}", captions.len());
        let scenes = 2.0_f64.ln() + 2.0 * 30.0_f64.ln() + (5.0_f64.ln() + 5.0 * 4.0_f64.ln()) / 6.0;
        let expected = (scenes + 2.0_f64.ln()) / bytes;
        let found = entropy_nats_per_byte();
        assert!((found / expected - 1.0).abs() < 2e-3, "{found} and {expected}");
    }
}
