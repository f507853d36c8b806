/*
 * UUIDs of MIG devices: version 5 (RFC 9562), which is SHA-1 over the GPU's UUID and the instance.
 * An instance that is made again in the same place is the same device, as on real cards, whose
 * driver computes these UUIDs in the same way (nvGenerateSmcUuid of its kernel modules).
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"

static uint32_t rotate(uint32_t word, unsigned int bits)
{
    return word << bits | word >> (32 - bits);
}

static uint32_t mix(unsigned int round, uint32_t b, uint32_t c, uint32_t d)
{
    if (round < 20)
        return (b & c) | (~b & d);
    if (round >= 40 && round < 60)
        return (b & c) | (b & d) | (c & d);
    return b ^ c ^ d;
}

/* SHA-1 (FIPS 180-4) of a message of at most 55 bytes, which is one block. */
static void sha1(const unsigned char *message, size_t length, unsigned char digest[20])
{
    static const uint32_t constants[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t start[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    unsigned char block[64] = {0};
    uint32_t words[80], h[5];
    memcpy(block, message, length);
    block[length] = 0x80;
    block[62] = (unsigned char)(length * 8 >> 8);
    block[63] = (unsigned char)(length * 8);
    for (unsigned int i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned int i = 16; i < 80; i++)
        words[i] = rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    memcpy(h, start, sizeof h);
    for (unsigned int i = 0; i < 80; i++) {
        uint32_t next =
            rotate(h[0], 5) + mix(i, h[1], h[2], h[3]) + h[4] + constants[i / 20] + words[i];
        h[4] = h[3];
        h[3] = h[2];
        h[2] = rotate(h[1], 30);
        h[1] = h[0];
        h[0] = next;
    }
    for (unsigned int i = 0; i < 20; i++)
        digest[i] = (unsigned char)((start[i / 4] + h[i / 4]) >> (24 - 8 * (i % 4)));
}

/* Writes "MIG-" and the UUID of the compute instance at `start` in a GPU instance. */
void sim_mig_uuid(const char *gpu_uuid, unsigned int instance, unsigned int start, char *uuid)
{
    unsigned char message[55], d[20];
    size_t used = 0;
    for (const char *text = gpu_uuid + 4; text[0] != '\0' && used < 16; text++) {
        unsigned int byte;
        if (text[0] != '-' && sscanf(text, "%2x", &byte) == 1) {
            message[used++] = (unsigned char)byte;
            text++;
        }
    }
    used += (size_t)snprintf((char *)message + used, sizeof message - used, "gi %u slice %u",
                             instance, start);
    sha1(message, used, d);
    d[6] = (unsigned char)((d[6] & 0x0f) | 0x50);
    d[8] = (unsigned char)((d[8] & 0x3f) | 0x80);
    snprintf(uuid, SIM_UUID_SIZE,
             "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", d[0], d[1],
             d[2], d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10], d[11], d[12], d[13], d[14],
             d[15]);
}
