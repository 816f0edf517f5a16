/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A small JSON reader for the scenario files of the stand-ins. It reads whole documents into a tree; it writes none.
 */
#ifndef SIMULATOR_JSON_H
#define SIMULATOR_JSON_H

#include <stdbool.h>
#include <stddef.h>

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    char *key; /* in an object */
    char *text; /* of a string */
    double number; /* of a number; 0 or 1 of a boolean */
    long long integer; /* of a number that is whole */
    struct json *first; /* of an array or object */
    struct json *next; /* in an array or object */
    int count; /* of an array or object */
};

/* The tree, or NULL with the reason in `error`. */
struct json *json_parse(const char *text, char *error, size_t error_size);
void json_free(struct json *node);

/* What a dotted path leads to ("pci.address", "devices.3.name"); NULL where it leads nowhere or to null. */
const struct json *json_get(const struct json *node, const char *path);
const struct json *json_at(const struct json *array, int index);

/* Values with a default for what is absent or of another type. */
long long json_integer(const struct json *node, const char *path, long long fallback);
double json_number(const struct json *node, const char *path, double fallback);
const char *json_text(const struct json *node, const char *path, const char *fallback);
bool json_true(const struct json *node, const char *path);
int json_length(const struct json *node, const char *path);

#endif
