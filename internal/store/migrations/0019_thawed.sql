-- Records say of a runtime that went on after a light sleep that one layer of its
-- checkpoint is a copy of what it writes to. A program that does not know of that would
-- take the copy for a layer below: files that were removed since would be back.

SELECT 1;
