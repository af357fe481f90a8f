//! Pictures in cells: the protocol that the terminal speaks (kitty, iTerm2, sixel) or half blocks, through `ratatui-image`; and shades where
//! there are no colours for either.
//!
//! The protocol is told by the environment and the setting `pictures`, and the size of a cell by the kernel: a terminal that was asked
//! might answer late, over a slow line, and its answer would be read as keys. `paring doctor` does ask.

use super::palette::Palette;
use crate::config::{ColorLevel, PictureKind, Rgb};
use crate::session::{Changed, Picture};
use image::{DynamicImage, RgbImage};
use ratatui::buffer::Buffer;
use ratatui::layout::{Rect, Size};
use ratatui::style::Color;
use ratatui::widgets::Widget;
use ratatui_image::picker::{Picker, ProtocolType};
use ratatui_image::protocol::Protocol;
use ratatui_image::{FontSize, Image, Resize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

/// A cell's pixels where the kernel does not know them: twice as high as wide.
const CELL: (u16, u16) = (10, 20);

/// What draws pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Means {
    pub kind: PictureKind,
    /// Width and height of a cell in pixels.
    pub cell: (u16, u16),
}

impl Default for Means {
    fn default() -> Means {
        Means { kind: PictureKind::Blocks, cell: CELL }
    }
}

impl Means {
    /// What `set` comes to in a terminal with such an environment; `pixels` of the whole window, where known, and its `cells`.
    pub fn of(set: PictureKind, env: impl Fn(&str) -> Option<String>, pixels: (u16, u16), cells: (u16, u16)) -> Means {
        let cell = match (pixels.0.checked_div(cells.0), pixels.1.checked_div(cells.1)) {
            (Some(w), Some(h)) if w > 1 && h > 1 => (w, h),
            _ => CELL,
        };
        let kind = if set == PictureKind::Auto { PictureKind::of(env) } else { set };
        Means { kind, cell }
    }
}

/// Encoded pictures by item and size: encoding one takes longer than drawing the screen.
#[derive(Default)]
pub struct Pictures {
    raw: HashMap<usize, RgbImage>,
    encoded: Mutex<HashMap<(usize, Means, Size), Protocol>>,
}

impl std::fmt::Debug for Pictures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pictures").field("raw", &self.raw.len()).finish()
    }
}

impl Pictures {
    pub fn clear(&mut self) {
        self.raw.clear();
        self.encoded.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }

    /// Takes a page's pictures; those that are no pictures (too few bytes for their size) are left out.
    pub fn prepare(&mut self, page: Option<&Changed>) {
        for item in page.iter().flat_map(|p| &p.items) {
            if self.raw.contains_key(&item.index) {
                continue;
            }
            let image = item.picture.as_ref().and_then(raw);
            self.raw.extend(image.map(|image| (item.index, image)));
        }
    }

    pub fn has(&self, item: usize) -> bool {
        self.raw.contains_key(&item)
    }

    /// Draws the picture of `item` into `area`, keeping its shape; nothing where there is none.
    pub fn draw(&self, item: usize, area: Rect, (pal, means): (&Palette, Means), buf: &mut Buffer) {
        let Some(image) = self.raw.get(&item).filter(|_| !area.is_empty()) else { return };
        if pal.ascii || pal.level <= ColorLevel::Ansi16 || means.kind == PictureKind::Off {
            return shades(image, area, pal, buf);
        }
        let size = Size::new(area.width, area.height);
        let mut encoded = self.encoded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let key = (item, means, size);
        let made = match encoded.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let Some(made) = encode(image, size, means) else { return };
                free.insert(made)
            }
        };
        Image::new(made).render(area, buf);
        if pal.level == ColorLevel::Ansi256 && means.kind == PictureKind::Blocks {
            fewer_colours(area, buf);
        }
    }
}

fn raw(p: &Picture) -> Option<RgbImage> {
    RgbImage::from_raw(u32::from(p.width), u32::from(p.height), p.rgb.clone())
        .filter(|i| i.width() > 0 && i.height() > 0)
}

fn encode(image: &RgbImage, size: Size, means: Means) -> Option<Protocol> {
    #[expect(deprecated, reason = "the other ways ask the terminal: see the file's head")]
    let mut picker = Picker::from_fontsize(FontSize::new(means.cell.0, means.cell.1));
    picker.set_protocol_type(match means.kind {
        PictureKind::Kitty => ProtocolType::Kitty,
        PictureKind::Iterm2 => ProtocolType::Iterm2,
        PictureKind::Sixel => ProtocolType::Sixel,
        PictureKind::Auto | PictureKind::Blocks | PictureKind::Off => ProtocolType::Halfblocks,
    });
    // Small pictures are made larger: an image of 32 pixels a side would be three cells wide.
    picker.new_protocol(DynamicImage::ImageRgb8(image.clone()), size, Resize::Scale(None)).ok()
}

/// Brightness as density of a letter, for terminals without the colours.
fn shades(image: &RgbImage, area: Rect, pal: &Palette, buf: &mut Buffer) {
    // A cell is twice as high as wide.
    let scale = f64::min(
        f64::from(area.width) / f64::from(image.width()),
        2.0 * f64::from(area.height) / f64::from(image.height()),
    );
    let side = |n: u32, part: f64| ((f64::from(n) * scale * part).round() as u32).max(1);
    let (w, h) = (side(image.width(), 1.0).min(area.width.into()), side(image.height(), 0.5).min(area.height.into()));
    let small = image::imageops::resize(image, w, h, image::imageops::FilterType::Triangle);
    for (x, y, p) in small.enumerate_pixels() {
        let [r, g, b] = p.0.map(f64::from);
        // Rec. 601 luma, as grey pictures of files have it.
        let light = (0.299 * r + 0.587 * g + 0.114 * b) / 255.0;
        if let Some(cell) = buf.cell_mut((area.x + x as u16, area.y + y as u16)) {
            cell.set_char(pal.density(light));
        }
    }
}

fn fewer_colours(area: Rect, buf: &mut Buffer) {
    let fewer = |c: Color| match c {
        Color::Rgb(r, g, b) => Color::Indexed(Rgb(r, g, b).to_256()),
        other => other,
    };
    for y in area.top()..area.bottom() {
        for x in area.left()..area.right() {
            if let Some(cell) = buf.cell_mut((x, y)) {
                (cell.fg, cell.bg) = (fewer(cell.fg), fewer(cell.bg));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_done_and_a_cell_is_as_large_as_the_kernel_says() {
        let tmux = |name: &str| (name == "TMUX").then(|| "x".to_owned());
        let set = |kind, pixels, cells| Means::of(kind, tmux, pixels, cells);
        assert_eq!(set(PictureKind::Sixel, (800, 480), (80, 24)), Means { kind: PictureKind::Sixel, cell: (10, 20) });
        assert_eq!(set(PictureKind::Kitty, (1440, 864), (80, 24)).cell, (18, 36));
        assert_eq!(set(PictureKind::Auto, (0, 0), (80, 24)).kind, PictureKind::Blocks);
        // Nobody knows.
        for (pixels, cells) in [((0, 0), (80, 24)), ((80, 24), (80, 24)), ((800, 480), (0, 0))] {
            assert_eq!(set(PictureKind::Kitty, pixels, cells).cell, CELL);
        }
    }

    /// The left half black, the right half red.
    fn halves(w: u16, h: u16) -> Picture {
        let pixel = |x: u16| if x < w / 2 { [0, 0, 0] } else { [255, 0, 0] };
        Picture { width: w, height: h, rgb: (0..h).flat_map(|_| (0..w).flat_map(pixel)).collect() }
    }

    fn drawn(pal: &Palette, means: Means, area: Rect) -> Buffer {
        let item = crate::session::Item { index: 7, picture: Some(halves(8, 8)), ..Default::default() };
        let page = Changed { items: vec![item], ..Changed::default() };
        let mut pictures = Pictures::default();
        pictures.prepare(Some(&page));
        assert!(pictures.has(7));
        let mut buf = Buffer::empty(Rect::new(0, 0, area.right() + 2, area.bottom() + 2));
        pictures.draw(7, area, (pal, means), &mut buf);
        buf
    }

    #[test]
    fn a_picture_is_in_its_place_in_every_way_of_drawing_it() {
        let area = Rect::new(2, 1, 16, 8);
        let pal = |level, ascii| Palette { theme: crate::config::Theme::dark(), level, ascii };
        let full = drawn(&pal(ColorLevel::True, false), Means::default(), area);
        let colours = |buf: &Buffer, x| (buf[(x, 4)].fg, buf[(x, 4)].bg);
        assert_eq!(colours(&full, 3).0, Color::Rgb(0, 0, 0));
        assert_eq!(colours(&full, 16).0, Color::Rgb(255, 0, 0));
        let few = drawn(&pal(ColorLevel::Ansi256, false), Means::default(), area);
        assert!(matches!(colours(&few, 16).0, Color::Indexed(_)), "{:?}", colours(&few, 16));
        let plain = drawn(&pal(ColorLevel::None, true), Means::default(), area);
        let row: String = (2..18).map(|x| plain[(x, 4)].symbol()).collect();
        assert!(row.starts_with("    ") && row.trim_start().len() >= 6 && row.is_ascii(), "{row:?}");
        // A protocol's bytes stand in the area's cells alone.
        let sixel = drawn(&pal(ColorLevel::True, false), Means { kind: PictureKind::Sixel, cell: CELL }, area);
        assert!(sixel[(2, 1)].symbol().contains("\x1bP"), "{:?}", sixel[(2, 1)].symbol());
        assert_eq!((sixel[(0, 0)].symbol(), sixel[(1, 1)].symbol()), (" ", " "));
    }

    #[test]
    fn what_is_no_picture_is_none() {
        for (w, h, bytes) in [(0, 0, 0), (4, 4, 47), (4, 0, 0), (65535, 65535, 3)] {
            assert!(raw(&Picture { width: w, height: h, rgb: vec![0; bytes] }).is_none(), "{w} {h} {bytes}");
        }
        assert!(raw(&halves(3, 5)).is_some());
    }
}
