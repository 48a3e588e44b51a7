--[[
  What shows how a queue stands: the same for a call about one and for a call about several.
  queue(key) returns what hw_queue_stats replies.
]]
local looks = {}
