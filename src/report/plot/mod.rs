//! Plots as SVG or PNG, drawn in memory with a font of their own, so that they come out the same on
//! a machine without fonts and a file is never left half written.

mod axis;
mod distribution;
mod png;
mod scatter;
mod sweep;
mod timeline;
mod waterfall;

use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use thiserror::Error;

pub use distribution::{Distribution, Sample};
pub use scatter::{Point, Scatter};
pub use sweep::{HeatMap, Lines, Series};
pub use timeline::TimelinePlot;
pub use waterfall::{Bar, Waterfall};

/// DejaVu Sans, cut to the characters that occur; licence beside it.
static FONT: &[u8] = include_bytes!("../font/DejaVuSans-subset.ttf");

/// A plot that could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlotError {
    /// Neither `.svg` nor `.png`.
    #[error("`{0}` is no image that can be written: expected a name that ends in .svg or .png")]
    Extension(String),
    /// The drawing library gave up.
    #[error("cannot draw the plot: {0}")]
    Draw(String),
    /// There is nothing to draw.
    #[error("there is nothing to plot: {0}")]
    Empty(String),
}

/// What an image file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// Vector image, text stays text.
    Svg,
    /// Pixels.
    Png,
}

impl ImageFormat {
    /// By the extension of a file.
    ///
    /// # Errors
    /// [`PlotError::Extension`].
    pub fn of(path: &Path) -> Result<Self, PlotError> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(ImageFormat::Svg),
            Some("png") => Ok(ImageFormat::Png),
            _ => Err(PlotError::Extension(path.display().to_string())),
        }
    }
}

/// Something that can be drawn.
pub trait Figure {
    /// Width and height in pixels.
    fn size(&self) -> (u32, u32);
    /// Draws on a white area of that size.
    ///
    /// # Errors
    /// [`PlotError`].
    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError>;
}

/// Draws a figure and returns the file's bytes.
///
/// # Errors
/// [`PlotError`].
pub fn render(figure: &impl Figure, format: ImageFormat) -> Result<Vec<u8>, PlotError> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let registered =
        REGISTERED.get_or_init(|| register_font("sans-serif", FontStyle::Normal, FONT).is_ok());
    if !registered {
        return Err(PlotError::Draw("the built-in font is damaged".to_owned()));
    }
    let (width, height) = figure.size();
    match format {
        ImageFormat::Svg => {
            let mut text = String::new();
            {
                let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
                draw_on(figure, &area)?;
            }
            Ok(text.into_bytes())
        }
        ImageFormat::Png => {
            let mut pixels = vec![255; 3 * width as usize * height as usize];
            {
                let area =
                    BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
                draw_on(figure, &area)?;
            }
            Ok(png::encode(&pixels, width, height))
        }
    }
}

fn draw_on<DB: DrawingBackend>(
    figure: &impl Figure,
    area: &DrawingArea<DB, Shift>,
) -> Result<(), PlotError> {
    area.fill(&WHITE).map_err(draw_error)?;
    figure.draw(area)?;
    area.present().map_err(draw_error)
}

/// The drawing library's error as ours.
fn draw_error(error: impl std::fmt::Display) -> PlotError {
    PlotError::Draw(error.to_string())
}

/// Ink of text and axes.
const INK: RGBColor = RGBColor(51, 51, 51);
/// Grid lines.
const GRID: RGBColor = RGBColor(225, 225, 225);
/// What is neither gain nor loss: totals, model work.
const NEUTRAL: RGBColor = RGBColor(130, 142, 158);
/// Colours of series that people with colour-vision deficiency can tell apart (Okabe and Ito 2008).
const SERIES: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

/// The text style of the plots.
fn text(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}
