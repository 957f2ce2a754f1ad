//! The little of PNG (ISO/IEC 15948) that a plot needs: 8-bit RGB, no interlace, no filter.

use std::io::Write as _;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// Encodes `width * height` RGB pixels.
pub(super) fn encode(pixels: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    // Bit depth 8, colour type 2 (RGB), deflate, adaptive filters, no interlace.
    header.extend([8, 2, 0, 0, 0]);
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in pixels.chunks(3 * width.max(1) as usize) {
        // Writing to a vector does not fail. Each row starts with its filter, 0 for none.
        let _ = rows.write_all(&[0]).and_then(|()| rows.write_all(row));
    }
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut png, b"IHDR", &header);
    chunk(&mut png, b"IDAT", &rows.finish().unwrap_or_default());
    chunk(&mut png, b"IEND", &[]);
    png
}

fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    png.extend(kind);
    png.extend(data);
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(data);
    png.extend(crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_decoder_finds_the_pixels() {
        let pixels = [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9];
        let png = encode(&pixels, 2, 2);
        assert_eq!(&png[12..16], b"IHDR");
        assert_eq!(&png[16..24], [0, 0, 0, 2, 0, 0, 0, 2]);
        // The known checksum of an empty IEND.
        assert_eq!(&png[png.len() - 4..], [0xae, 0x42, 0x60, 0x82]);
        let at = png.windows(4).position(|w| w == b"IDAT").expect("data") + 4;
        let mut rows = Vec::new();
        let _ = flate2::read::ZlibDecoder::new(&png[at..]).read_to_end(&mut rows);
        assert_eq!(rows, [0, 255, 0, 0, 0, 255, 0, 0, 0, 0, 255, 9, 9, 9]);
    }
}
