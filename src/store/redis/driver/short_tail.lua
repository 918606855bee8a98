    end
    if judged < upto then
      break
    end
    from = upto
  end
  if judged == #KEYS then
    return cmsgpack.pack(answer)
  end
end

